"""What a broker answers: tables, processors, the remoting face, and what it does from time to time."""
