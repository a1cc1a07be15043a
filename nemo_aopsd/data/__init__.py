"""Problems and their reasoning graphs: reading, checking, preparing, measuring."""
