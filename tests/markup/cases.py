"""Documents and their translations by `shout`, which writes each word in capitals and aligns word i with word i."""

# format | source | translation; "\n" is written as ⏎.
CASES = r"""
html | <p>one <b>two</b> three</p> | <p>ONE <b>TWO</b> THREE</p>
html | <p>one <i>two <b>three</b></i></p> | <p>ONE <i>TWO <b>THREE</b></i></p>
html | <p>one <img src=a.png> two</p> | <p>ONE <img src=a.png> TWO</p>
html | <p>one <code>a b</code> two</p> | <p>ONE <code>a b</code> TWO</p>
html | <p>one <code>f()</code> two</p> | <p>ONE <code>f()</code> TWO</p>
html | <p>one {{x}}, two %s three %(n)d</p> | <p>ONE {{x}}, TWO %s THREE %(n)d</p>
html | <p>© &copy; one R&amp;D</p> | <p>© &copy; ONE R&amp;D</p>
html | <p>don&#39;t go</p> | <p>DON'T GO</p>
html | <pre>one  two</pre>three | <pre>one  two</pre>THREE
html | <script>if (a<b) {}</script><p>one</p> | <script>if (a<b) {}</script><p>ONE</p>
html | <style>p {}</style>one | <style>p {}</style>ONE
html | <p>one <b>two</p><p>three</b> four</p> | <p>ONE <b>TWO</p><p>THREE</b> FOUR</p>
html | <p translate="no">one</p><p>two</p> | <p translate="no">one</p><p>TWO</p>
html | one <span class="a notranslate">two</span> three | ONE <span class="a notranslate">two</span> THREE
html | <img alt="one two" title='three'> | <img alt="ONE TWO" title="THREE">
html | <input placeholder="one" value="two"> | <input placeholder="ONE" value="two">
html | <a data-x="title='y'" title=one>two</a> | <a data-x="title='y'" title="ONE">TWO</a>
html | <!DOCTYPE html><html><head><title>one</title></head></html> | <!DOCTYPE html><html><head><title>ONE</title></head></html>
html | <td>&nbsp;</td><td>1</td> | <td>&nbsp;</td><td>1</td>
html | <p>  one ⏎ two  </p> | <p>  ONE TWO  </p>
html | <b>One. Two.</b> three | <b>ONE. TWO.</b> THREE
html | one <a href=x></a> two | ONE<a href=x></a> TWO
html | <b>one</b>. | <b>ONE</b>.
html | <a>JSON</a>/<a>XML</a> one | <a>JSON</a>/<a>XML</a> ONE
html | <p>one<sup>1</sup> two</p> | <p>ONE<sup>1</sup> TWO</p>
html | <svg><text>one</text></svg>two | <svg><text>one</text></svg>TWO
html | <p>one <kbd>Ctrl</kbd> two</p> | <p>ONE <kbd>Ctrl</kbd> TWO</p>
html | <?php echo 1 ?>one | <?php echo 1 ?>ONE
html | one</div>two | ONE</div>TWO
html | <p>one <b><i><u>two</u></i></b> three</p> | <p>ONE <b><i><u>TWO</u></i></b> THREE</p>
html | <a>one two</a><a>three</a><a>four</a> | <a>ONE TWO</a><a>THREE</a><a>FOUR</a>
html | <b>one</b><img src=x><i>two</i> | <b>ONE</b><img src=x><i>TWO</i>
html | <b>one</b><i> two</i> | <b>ONE</b> <i>TWO</i>
html | <p>one-<b>two</b> three</p> | <p><b>ONE-TWO THREE</b></p>
html | <button aria-label="one two">three</button> | <button aria-label="ONE TWO">THREE</button>
html | <p>one <input type="checkbox"> two</p> | <p>ONE <input type="checkbox"> TWO</p>
html | <p>one <var>x</var> two</p> | <p>ONE <var>x</var> TWO</p>
html | <p>one <samp>a b</samp>, two</p> | <p>ONE <samp>a b</samp>, TWO</p>
html | <math><mi>x</mi></math> one | <math><mi>x</mi></math> ONE
html | <textarea>one</textarea> two | <textarea>one</textarea> TWO
html | <p>one <object data="x">two</object> three</p> | <p>ONE <object data="x">two</object> THREE</p>
html | <blockquote>one<br/>two</blockquote> | <blockquote>ONE<br/>TWO</blockquote>
html | <p>one &lt;b&gt; two</p> | <p>ONE &lt;B&gt; TWO</p>
html | <p>&ldquo;one&rdquo;</p> | <p>“ONE”</p>
html | <p>&euro; 5 one</p> | <p>&euro; 5 ONE</p>
html | <p>{{ user.name }} one</p> | <p>{{ user.name }} ONE</p>
html | <p>{a}{b} one</p> | <p>{a}{b} ONE</p>
html | <p>one <b>two {n}</b>.</p> | <p>ONE <b>TWO {n}</b>.</p>
html | <p>one! two? three.</p> | <p>ONE! TWO? THREE.</p>
html | <p>One. <b>Two.</b> Three.</p> | <p>ONE. <b>TWO.</b> THREE.</p>
html | <p>One <b>two. Three</b> four.</p> | <p>ONE <b>TWO. THREE</b> FOUR.</p>
html | <p>one <b>two | <p>ONE <b>TWO
html | </b>one | </b>ONE
html | <p>one < two > three</p> | <p>ONE &lt; TWO &gt; THREE</p>
html | <a href=x>one | <a href=x>ONE
html | <p class=>one</p> | <p class=>ONE</p>
html | <!--[if IE]>one<![endif]-->two | <!--[if IE]>one<![endif]-->TWO
html | <![CDATA[one]]>two | <![CDATA[one]]>TWO
html | <p>A&amp;B Co. one</p> | <p>A&amp;B CO. ONE</p>
markdown | one **two** three | ONE **TWO** THREE
markdown | > one⏎> two | > ONE TWO
markdown | <http://a.b> one | <http://a.b> ONE
markdown | one \* two | ONE \* TWO
markdown | a | b⏎--|--⏎one | **two** | A | B⏎--|--⏎ONE | **TWO**
markdown | ---⏎t: one⏎---⏎two | ---⏎t: one⏎---⏎TWO
markdown | one⏎===⏎⏎two | ONE⏎===⏎⏎TWO
markdown | ~~one~~ two | ~~ONE~~ TWO
markdown | one snake_case two | ONE SNAKE\_CASE TWO
markdown | - [ ] one⏎- [x] two | - [ ] ONE⏎- [x] TWO
markdown | > one **two**⏎>⏎> three | > ONE **TWO**⏎>⏎> THREE
markdown | [one][] two⏎⏎[one]: x | [ONE][] TWO⏎⏎[one]: x
markdown | [one] two⏎⏎[one]: x | [ONE] TWO⏎⏎[one]: x
markdown | [![one](a.png)](b) two | [![one](a.png)](b) TWO
markdown | one<br>two | ONE<br>TWO
markdown | `` a`b `` one | `` a`b `` ONE
markdown | &amp; one | &amp; ONE
markdown | 1\. one | 1\. ONE
markdown | \# one | \# ONE
markdown | one <span class="x">two</span> three | ONE <span class="x">TWO</span> THREE
markdown | one⏎⏎<p>two <b>three</b></p>⏎⏎four | ONE⏎⏎<p>TWO <b>THREE</b></p>⏎⏎FOUR
markdown | one   ⏎  two | ONE   ⏎  TWO
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE⏎⏎
srt | 7⏎00:00:01,000 --> 00:00:02,000⏎<i>one</i> two⏎⏎ | 7⏎00:00:01,000 --> 00:00:02,000⏎<i>ONE</i> TWO⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎- one⏎- two⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎- ONE⏎- TWO⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one two⏎three⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE TWO⏎THREE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one < <i>two</i>, three <3⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE < <i>TWO</i>, THREE <3⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎<font color="#fff">one</font>⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎<font color="#fff">ONE</font>⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎&amp; one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎&amp; ONE⏎⏎
po | msgid "one"⏎msgstr ""⏎ | #⏎msgid ""⏎msgstr ""⏎⏎msgid "one"⏎msgstr "ONE"⏎
po | msgid "one <b>two</b>"⏎msgstr ""⏎ | #⏎msgid ""⏎msgstr ""⏎⏎msgid "one <b>two</b>"⏎msgstr "ONE <b>TWO</b>"⏎
po | msgid "one\ttwo\t\tthree"⏎msgstr ""⏎ | #⏎msgid ""⏎msgstr ""⏎⏎msgid "one\ttwo\t\tthree"⏎msgstr "ONE\tTWO\t\tTHREE"⏎
po | msgid "\tone: "⏎msgstr ""⏎ | #⏎msgid ""⏎msgstr ""⏎⏎msgid "\tone: "⏎msgstr "\tONE: "⏎
po | msgid "<b>one</b><i>two</i>"⏎msgstr ""⏎ | #⏎msgid ""⏎msgstr ""⏎⏎msgid "<b>one</b><i>two</i>"⏎msgstr "<b>ONE</b><i>TWO</i>"⏎
po | #. note⏎msgid "one"⏎msgstr "eins"⏎ | #⏎msgid ""⏎msgstr ""⏎⏎#. note⏎msgid "one"⏎msgstr "eins"⏎
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
