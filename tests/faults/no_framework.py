print("no Trainer here")
