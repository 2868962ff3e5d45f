"""A real JupyterLab in a real Chromium: what people see, and what their clicks do."""
