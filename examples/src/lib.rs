//! Small programs to copy.
