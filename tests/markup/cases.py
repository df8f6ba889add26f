"""Documents and their translations by `shout`, which writes each word in capitals and aligns word i with word i."""

# format | source | translation; "\n" is written as ⏎.
CASES = r"""
html | <p>one <b>two</b> three</p> | <p>ONE <b>TWO</b> THREE</p>
html | <p>one <b>two</b>, three</p> | <p>ONE <b>TWO</b>, THREE</p>
html | <a href="x?a=1&amp;b=2">one</a> & two | <a href="x?a=1&amp;b=2">ONE</a> &amp; TWO
html | <p>one <i>two <b>three</b></i></p> | <p>ONE <i>TWO <b>THREE</b></i></p>
html | <p>one<br>two</p> | <p>ONE<br>TWO</p>
html | <p>one <img src=a.png> two</p> | <p>ONE <img src=a.png> TWO</p>
html | <p>one <code>a b</code> two</p> | <p>ONE <code>a b</code> TWO</p>
html | <p>one <code>f()</code> two</p> | <p>ONE <code>f()</code> TWO</p>
html | <p>one {name} two</p> | <p>ONE {name} TWO</p>
html | <p>one {{x}}, two %s three %(n)d</p> | <p>ONE {{x}}, TWO %s THREE %(n)d</p>
html | <p>© &copy; one R&amp;D</p> | <p>© &copy; ONE R&amp;D</p>
html | <p>don&#39;t go</p> | <p>DON'T GO</p>
html | <p>caf&eacute; one</p> | <p>CAFÉ ONE</p>
html | <p>one</p><!-- two --><p>three</p> | <p>ONE</p><!-- two --><p>THREE</p>
html | <p>one <!-- x --> two</p> | <p>ONE <!-- x --> TWO</p>
html | <pre>one  two</pre>three | <pre>one  two</pre>THREE
html | <script>if (a<b) {}</script><p>one</p> | <script>if (a<b) {}</script><p>ONE</p>
html | <style>p {}</style>one | <style>p {}</style>ONE
html | <p>one <b>two</p><p>three</b> four</p> | <p>ONE <b>TWO</p><p>THREE</b> FOUR</p>
html | <p>one <b><i>two</b></i></p> | <p>ONE <b><i>TWO</b></i></p>
html | <p translate="no">one</p><p>two</p> | <p translate="no">one</p><p>TWO</p>
html | one <span class="a notranslate">two</span> three | ONE <span class="a notranslate">two</span> THREE
html | <img alt="one two" title='three'> | <img alt="ONE TWO" title="THREE">
html | <input placeholder="one" value="two"> | <input placeholder="ONE" value="two">
html | <a data-x="title='y'" title=one>two</a> | <a data-x="title='y'" title="ONE">TWO</a>
html | <ul><li>one<li>two</ul> | <ul><li>ONE<li>TWO</ul>
html | <!DOCTYPE html><html><head><title>one</title></head></html> | <!DOCTYPE html><html><head><title>ONE</title></head></html>
html | <td>&nbsp;</td><td>1</td> | <td>&nbsp;</td><td>1</td>
html | <p>  one ⏎ two  </p> | <p>  ONE TWO  </p>
html | <b>one. two.</b> | <b>ONE. TWO.</b>
html | <b>One. Two.</b> three | <b>ONE. TWO.</b> THREE
html | one <a href=x></a> two | ONE<a href=x></a> TWO
html | <b>one.</b> | <b>ONE.</b>
html | <b>one</b>. | <b>ONE</b>.
html | <a>JSON</a>/<a>XML</a> one | <a>JSON</a>/<a>XML</a> ONE
html | see https://a.b/c?d=e. two | SEE https://a.b/c?d=e. TWO
html | mail a.b@c.de now | MAIL a.b@c.de NOW
html | a < b | A &lt; B
html | 1 2 3 | 1 2 3
html | <b></b> | <b></b>
html | <p>one<sup>1</sup> two</p> | <p>ONE<sup>1</sup> TWO</p>
html | <svg><text>one</text></svg>two | <svg><text>one</text></svg>TWO
html | <p>one <kbd>Ctrl</kbd> two</p> | <p>ONE <kbd>Ctrl</kbd> TWO</p>
html | {n, plural, one {# file} other {# files}} | {n, plural, one {# file} other {# files}}
html | <B>one</b> two | <B>ONE</b> TWO
html | <?php echo 1 ?>one | <?php echo 1 ?>ONE
html | one</div>two | ONE</div>TWO
markdown | one **two** three | ONE **TWO** THREE
markdown | # one # | # ONE #
markdown | - one⏎- *two* | - ONE⏎- *TWO*
markdown | > one⏎> two | > ONE TWO
markdown | one `a_b` two | ONE `a_b` TWO
markdown | [one](http://x "t") two | [ONE](http://x "t") TWO
markdown | [one][r]⏎⏎[r]: http://x | [ONE][r]⏎⏎[r]: http://x
markdown | ![one](a.png) two | ![one](a.png) TWO
markdown | ```⏎one⏎``` | ```⏎one⏎```
markdown |     one | ​    one
markdown | one  ⏎two | ONE  ⏎TWO
markdown | one <b>two</b> | ONE <b>TWO</b>
markdown | <div>one</div> | <div>ONE</div>
markdown | <http://a.b> one | <http://a.b> ONE
markdown | one \* two | ONE \* TWO
markdown | one &copy; two | ONE &copy; TWO
markdown | a | b⏎--|--⏎one | **two** | A | B⏎--|--⏎ONE | **TWO**
markdown | ---⏎t: one⏎---⏎two | ---⏎t: one⏎---⏎TWO
markdown | 1. one⏎2. two | 1. ONE⏎2. TWO
markdown | one⏎===⏎⏎two | ONE⏎===⏎⏎TWO
markdown | ~~one~~ two | ~~ONE~~ TWO
markdown | one {name} %d | ONE {name} %d
markdown | ***one** two* | ***ONE** TWO*
markdown | - one⏎  - two⏎⏎    three | - ONE⏎  - TWO⏎⏎    THREE
markdown | one snake_case two | ONE SNAKE\_CASE TWO
markdown | --- | ---
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE⏎⏎
srt | 7⏎00:00:01,000 --> 00:00:02,000⏎<i>one</i> two⏎⏎ | 7⏎00:00:01,000 --> 00:00:02,000⏎<i>ONE</i> TWO⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎- one⏎- two⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎- ONE⏎- TWO⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one two⏎three⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE TWO⏎THREE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎R&D <3⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎R&D 3⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎{\an8}one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎{\an8}ONE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎♪⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎♪⏎⏎
"""


def cases() -> list[tuple[str, str, str]]:
    found = []
    for line in CASES.strip("\n").split("\n"):
        kind, _, rest = line.partition(" | ")
        half = rest.count(" | ") // 2
        parts = rest.split(" | ")
        source, target = " | ".join(parts[: half + 1]), " | ".join(parts[half + 1 :])
        found.append((kind, source.replace("⏎", "\n"), target.replace("⏎", "\n").lstrip("\u200b")))
    return found
