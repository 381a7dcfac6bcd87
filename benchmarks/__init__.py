"""The measurements that README quotes, each one command that prints a table."""
