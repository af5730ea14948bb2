{{tuned}}
