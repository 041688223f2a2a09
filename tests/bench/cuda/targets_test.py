#!/usr/bin/env python3
"""Tests of targets.py: what counts as met, missed and not measured."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import targets


def result(queue, asking, median, share, own, batch=1, context=128):
    return {"queue": queue, "asking": asking, "batch": batch, "context": context, "ms_per_token": {"p50": median},
            "own_ms_per_token": own, "share_of_read_limit": share}


def program(shape, results, package="batch-1"):
    return {"benchmark": "decode", "package": f"/somewhere/{shape}/{package}", "results": results}


ONE = program(
    "llama-3.2-1b",
    [
        result("dynamic", targets.TOGETHER, 0.610, 0.8999, 0.609),
        result("static", targets.TOGETHER, 0.600, 0.9001, 0.590),
        result("dynamic", targets.SINGLE, 0.6239, 0.88, 0.609),
        result("static", targets.SINGLE, 0.6051, 0.88, 0.590),
    ],
)


def verdicts(rows, beginning):
    return {row["target"][len(beginning):]: row["met"] for row in rows if row["target"].startswith(beginning)}


class Judging(unittest.TestCase):
    def test_each_target_is_held_to_its_own_figure(self):
        found = verdicts(targets.judge([ONE], []), "llama-3.2-1b, batch 1, context 128")
        self.assertEqual(
            found,
            {
                ": share of the read limit, the faster mode": True,  # 0.9001 of the static one
                ": dynamic to static": True,  # 1.0167
                ", dynamic: many steps to the kernel's own time": True,  # 1.0016
                ", dynamic: one token an execute above the kernel's own time": True,  # 14.9 us
                ", static: many steps to the kernel's own time": False,  # 1.017
                ", static: one token an execute above the kernel's own time": False,  # 15.1 us
            },
        )

    def test_a_share_just_below_is_missed(self):
        low = program("llama-3.2-1b", [result("static", targets.TOGETHER, 0.6, 0.8999, 0.6)])
        found = verdicts(targets.judge([low], []), "llama-3.2-1b, batch 1, context 128")
        self.assertIs(found[": share of the read limit, the faster mode"], False)
        self.assertIsNone(found[": dynamic to static"])

    def test_what_was_not_measured_is_said_to_be(self):
        rows = targets.judge([ONE], [])
        others = [row for row in rows if not row["target"].startswith("llama-3.2-1b, batch 1, context 128")]
        self.assertTrue(others and all(row["met"] is None for row in others))
        self.assertIn("not measured", targets.table(rows))

    def test_cases_are_found_by_batch_and_context_whatever_the_package_is_called(self):
        long = program("llama-3.1-8b", [result("static", targets.TOGETHER, 4.0, 0.91, 4.0, context=8192)],
                       "batch-1-context-8448")
        other_batch = program("llama-3.1-8b", [result("static", targets.TOGETHER, 5.0, 0.5, 5.0, batch=3, context=1024)])
        found = {row["target"]: row["met"] for row in targets.judge([long, other_batch], [])}
        self.assertIs(found["llama-3.1-8b, batch 1, context 8192: share of the read limit, the faster mode"], True)
        self.assertIsNone(found["llama-3.1-8b, batch 16, context 1024: share of the read limit, the faster mode"])

    def test_beside_others_dynamic_mode_must_not_be_slower(self):
        def of(others, ratio):
            return {"others": others, "worker_limit": 0, "many_steps_an_execute": {"dynamic_to_static": ratio}}

        beside = [{"results": [of("nobody else", 2.0), of("thin", 0.99), of("whole", 1.01)]}]
        rows = targets.judge([], beside)
        found = {row["target"]: row["met"] for row in rows if "beside" in row["target"]}
        self.assertEqual(len(found), 4)
        self.assertIs(found["beside thin, all SMs, many steps an execute: dynamic to static"], True)
        self.assertIs(found["beside whole, all SMs, many steps an execute: dynamic to static"], False)
        self.assertIsNone(found["beside whole, all SMs, one step an execute: dynamic to static"])


class Reading(unittest.TestCase):
    def test_both_forms_of_files_say_the_same_and_what_is_cut_off_is_left_out(self):
        plain = json.dumps(ONE) + "\n" + json.dumps(ONE) + '\n{"benchmark": "dec'
        whole = json.dumps({"device": "a GPU", "results": [ONE, ONE]})
        self.assertEqual(targets.read_results(plain), [ONE, ONE])
        self.assertEqual(targets.read_results(whole), [ONE, ONE])

    def test_the_program_prints_the_table_and_what_stands_beside_it(self):
        left_out = program("left-out-dependencies/llama-3.2-1b", ONE["results"][:1])
        torch = {"model": "/somewhere/llama-3.2-1b/model", 
                 "results": [{"batch": 1, "context": 128, "way": "compiled", "ms_per_token": {"p50": 1.545}}]}
        script = pathlib.Path(targets.__file__)
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, value in (("decode", ONE), ("left_out", left_out), ("torch", {"results": [torch]})):
                paths[name] = pathlib.Path(folder) / name
                paths[name].write_text(json.dumps(value))
            printed = subprocess.run(
                [sys.executable, script, paths["decode"], "--left-out", paths["left_out"], "--torch", paths["torch"],
                 "--json", f"{folder}/out.json"],
                check=True, capture_output=True, text=True,
            ).stdout
            rows = json.loads(pathlib.Path(f"{folder}/out.json").read_text())["results"]
        self.assertIn("90.0 %  >= 90.0 %    met", printed)
        self.assertIn("MISSED", printed)
        self.assertIn("without dependencies, llama-3.2-1b, batch 1, context 128, dynamic: 0.6100 ms", printed)
        self.assertIn("torch, llama-3.2-1b, batch 1, context 128: 1.5450 ms a token (compiled)", printed)
        self.assertEqual(sum(row["met"] is True for row in rows), 4)


if __name__ == "__main__":
    unittest.main()
