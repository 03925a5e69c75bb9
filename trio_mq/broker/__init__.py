"""What a broker answers: tables of topics, groups, offsets and members, and the processors."""
