"""What tests share: databases, a proxy that cuts connections, workloads, encoders."""
