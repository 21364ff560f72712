"""Faults in common/kv; see run."""
FOLDER = "common"
TESTS = {
    "kv/": ["admission_test"],
}

MUTANTS = [
    ("kv/mc_sf.cc", "from - 1, step}", "from - 2, step}", "the last chunk of a prompt holds nothing before it is whole"),
    ("kv/mc_sf.cc", "grown + late, 0}", "grown, 0}", "a request that may stay longer holds nothing then"),
    ("kv/kv_profile.cc", "if (at > to) break;", "if (at >= to) break;", "the peak ends a step before its range does"),
]
