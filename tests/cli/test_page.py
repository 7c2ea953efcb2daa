"""`report.html` of a run: one file that shows what came of it."""

import base64
import re

from small_runs import lstm_recipe

from staircase_attention.experiments import page as page_module
from staircase_attention.experiments.page import page, table, write_page
from staircase_attention.training import train


def images(text):
    """The figures of a page, by their captions."""
    found = re.findall('alt="([^"]*)" src="data:image/svg[+]xml;base64,([^"]*)"', text)
    return {caption: base64.b64decode(data).decode() for caption, data in found}


def test_a_run_on_a_task_shows_its_curve_its_cost_and_an_episode(task_run):
    text = (task_run / "report.html").read_text()
    assert {*images(text)} == {"Learning curve", "Loss by position", "Test episode 0"}
    assert "pass 2" in images(text)["Test episode 0"]
    for words in ("<td>state</td>", "&quot;num_updates&quot;: 6", "&quot;packages&quot;"):
        assert words in text
    # Nothing is loaded from elsewhere.
    assert not re.findall(r'(?:src|href)="(?!data:)', text)


def test_a_run_on_text_shows_samples(text_run, tmp_path):
    text = write_page(text_run).read_text()
    (text_run / "report.html").unlink()
    assert {*images(text)} == {"Learning curve", "Loss by position"}
    assert text.count("<li>") == 3
    assert "bits per byte" in text


def test_losses_of_the_first_tokens_of_a_text_say_so(text_run, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_SCORED", 100)
    drawn = images(write_page(text_run).read_text())
    (text_run / "report.html").unlink()
    assert "test (first 100 of " in drawn["Loss by position"]


def test_an_lstm_has_one_pass(tmp_path):
    train(lstm_recipe(), tmp_path / "run")
    drawn = images(write_page(tmp_path / "run").read_text())
    assert "pass 1" in drawn["Test episode 0"]
    assert "pass 2" not in drawn["Test episode 0"]


def test_what_others_wrote_is_text_and_not_markup():
    text = page("<b>", [table([{"<i>": "a & b"}])]).decode()
    assert "<h1>&lt;b&gt;</h1>" in text
    assert "<th>&lt;i&gt;</th>" in text
    assert "<td>a &amp; b</td>" in text


def test_a_finished_run_stays_finished_without_its_page(staircase, task_run, monkeypatch):
    monkeypatch.setattr(page_module, "lens_figure", None)
    status, out, err = staircase("resume", task_run)
    assert status == 0
    assert "finished after 6 updates" in out
    assert "staircase: no report.html: TypeError: 'NoneType' object is not callable" in err
