//! Memory shared by two domains: regions, rings, A-stacks, blocks of values.
