"""Ready-made stages for common jobs, written with the public interface only."""
