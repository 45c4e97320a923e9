"""Machines on Amazon EC2. The only room that knows boto3, which loads when it is first needed."""
