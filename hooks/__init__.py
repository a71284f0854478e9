"""OCI hooks for engines that take hooks and no wrapper: one module per stage, on the pipeline of `runtime_wrapper`."""
