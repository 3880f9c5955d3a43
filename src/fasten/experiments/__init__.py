"""The paper, table by table and figure by figure."""
