"""Many runs: in parallel, on a cluster; compared with each other and with the paper's."""
