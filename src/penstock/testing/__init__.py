"""What users and Penstock's own tests need to try flows out: clusters on loopback, faults, reference models."""
