"""The demonstration job: predict late flights, with a wide & deep model on parameter servers."""
