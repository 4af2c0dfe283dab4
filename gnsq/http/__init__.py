"""What HTTPClient is made of: answers and values (pure), calls with their deadline, sessions on native threads."""
