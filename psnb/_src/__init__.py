"""Everything that is not public: `psnb`, `psnb.data` and `psnb.errors` name what is."""
