"""Many runs: side by side, on a cluster; compared with each other and with the paper's."""
