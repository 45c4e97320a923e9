"""The AWS provider. The only package that uses boto3, which is imported when first needed."""
