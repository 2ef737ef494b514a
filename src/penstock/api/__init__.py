"""What users write flows with; the package's top level exports it."""
