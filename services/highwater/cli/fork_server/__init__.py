"""Services of a cluster on one machine, started by forks of one process that has imported them all: importing takes
each a second of a processor, a fork a hundredth of that."""
