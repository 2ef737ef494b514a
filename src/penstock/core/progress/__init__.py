"""Progress tracking: who could still send what, and what is therefore complete."""
