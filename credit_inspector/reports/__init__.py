"""Reports: panels and findings → a document.

To add one, drop a module in with ``render(title, panels) -> str``. Text in a block is data: it reaches markup only escaped.
"""
