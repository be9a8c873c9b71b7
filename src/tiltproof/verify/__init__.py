"""The search for a proof: attack, branch and bound over parameter boxes, verdicts and ranges."""
