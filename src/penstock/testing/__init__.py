"""What users and Penstock's own tests try flows with: local runs, clusters, reference models."""
