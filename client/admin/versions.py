"""Names of RocketMQ's versions by the ordinals that peers report. RocketMQ's MQVersion."""

#: First ordinals, newest first, with the version that each stands for and how many patches a minor version has. Every
#: patch has two ordinals: its snapshot, then itself. The minors of 3.3 to 3.9 begin with patch 1.
_RULES = ((212, 4, 0, 10, 0), (86, 3, 3, 9, 1), (46, 3, 1, 10, 0), (16, 3, 0, 15, 1))
_BETAS = (f"BETA{n}{end}" for n in range(1, 10) for end in ("_SNAPSHOT", "") if n > 5 or not end)
_FIRST = ("SNAPSHOT", "ALPHA1", *_BETAS, "FINAL")
#: The last version that has an ordinal, V5_9_9, has the one before this.
_HIGHER = 612


def version_name(ordinal: int) -> str:
    """The name of a version: `V5_3_3` for 479."""
    if ordinal < 0 or ordinal >= _HIGHER:
        return "HIGHER_VERSION"
    for first, major, minor, patches, first_patch in _RULES:
        if ordinal >= first:
            minors, rest = divmod(ordinal - first, 2 * patches)
            major, minor = major + (minor + minors) // 10, (minor + minors) % 10
            name = f"V{major}_{minor}_{first_patch + rest // 2}"
            return name if rest % 2 else f"{name}_SNAPSHOT"
    return f"V3_0_0_{_FIRST[ordinal]}"
