"""What is committed and computed: vectors, the table of cuckoo bounds."""
