const lambda = 3
