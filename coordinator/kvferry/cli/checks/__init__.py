"""What ``kvferry doctor`` looks at; one module an area. Each check returns findings."""
