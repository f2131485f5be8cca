"""The controller: elections, assignments and the state machines (pure), and the server that carries them out."""
