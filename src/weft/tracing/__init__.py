"""What traces of functions share: objects that answer operations, and the arrays that a function captured."""
