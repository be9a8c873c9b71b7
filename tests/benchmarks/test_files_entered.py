"""The program that counts the files a proof enters: it runs, and a run folder adds files."""


def test_files_and_functions_are_counted(start):
    printed, found = start("files_entered", "--images", 1)
    plain, with_folder = found["certify"], found["certify with a run folder"]
    assert len(plain["files"]) <= 35
    assert len(with_folder["files"]) <= 38
    assert set(plain["files"]) < set(with_folder["files"])
    assert not any(file.startswith(("cli/", "checker/")) for file in plain["files"])
    assert plain["functions"] > len(plain["files"])
    assert f"certify: {len(plain['files'])} files, {plain['functions']} functions" in printed
