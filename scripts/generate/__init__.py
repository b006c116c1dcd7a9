"""Programs that write computed files, for example vectors and the table of cuckoo bounds."""
