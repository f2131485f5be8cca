"""The limits of a request: before it is read, and before anything is done for it."""
