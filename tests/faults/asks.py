name = input("which model? ")
