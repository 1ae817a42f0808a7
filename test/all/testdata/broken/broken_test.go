package broken

var number int = "not a number"
