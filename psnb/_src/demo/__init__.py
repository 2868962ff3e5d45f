"""The demonstration job: late flights, with a wide & deep model on parameter servers."""
