"""Documents and their translations by `shout`, which writes each word in capitals and aligns word i with word
i.
"""

# format | source | translation; "\n" is written as ⏎.
CASES = r"""
html | <p>one <b>two</b> three</p> | <p>ONE <b>TWO</b> THREE</p>
html | <p>one<br>two</p> | <p>ONE<br>TWO</p>
html | <p>one <img src=a.png> two</p> | <p>ONE <img src=a.png> TWO</p>
html | <p>one <code>a b</code> two</p> | <p>ONE <code>a b</code> TWO</p>
html | <p>one {{x}}, two %s three %(n)d</p> | <p>ONE {{x}}, TWO %s THREE %(n)d</p>
html | <p>© &copy; one R&amp;D</p> | <p>© &copy; ONE R&amp;D</p>
html | <p>caf&eacute; one</p> | <p>CAFÉ ONE</p>
html | <pre>one  two</pre>three | <pre>one  two</pre>THREE
html | <script>if (a<b) {}</script><p>one</p> | <script>if (a<b) {}</script><p>ONE</p>
html | <style>p {}</style>one | <style>p {}</style>ONE
html | <p>one <b>two</p><p>three</b> four</p> | <p>ONE <b>TWO</p><p>THREE</b> FOUR</p>
html | <p>one <b><i>two</b></i></p> | <p>ONE <b><i>TWO</b></i></p>
html | one <span class="a notranslate">two</span> three | ONE <span class="a notranslate">two</span> THREE
html | <img alt="one two" title='three'> | <img alt="ONE TWO" title='THREE'>
html | <td title='19"' aria-label='one "two" &#39;'>three</td> | <td title='19"' aria-label='ONE "TWO" &#39;'>THREE</td>
html | <button aria-label='{"a":"b"}'>one</button> | <button aria-label='{"a":"b"}'>ONE</button>
html | <img alt="it's one"> | <img alt="IT'S ONE">
html | <img alt="one" translate="no"/> two <input title=one class="notranslate" /> | <img alt="one" translate="no"/> TWO <input title=one class="notranslate" />
html | <input placeholder="one" value="two"> | <input placeholder="ONE" value="two">
html | <a data-x="title='y'" title=one>two</a> | <a data-x="title='y'" title="ONE">TWO</a>
html | <ul><li>one<li>two</ul> | <ul><li>ONE<li>TWO</ul>
html | <!DOCTYPE html><html><head><title>one</title></head></html> | <!DOCTYPE html><html><head><title>ONE</title></head></html>
html | <td>&nbsp;</td><td>1</td> | <td>&nbsp;</td><td>1</td>
html | <p>  one ⏎ two  </p> | <p>  ONE TWO  </p>
html | <b>one. two.</b> | <b>ONE. TWO.</b>
html | one <a href=x></a> two | ONE<a href=x></a> TWO
html | <b>one</b>. | <b>ONE</b>.
html | see https://a.b/c?d=e. two | SEE https://a.b/c?d=e. TWO
html | mail a.b@c.de now | MAIL a.b@c.de NOW
html | <b></b> | <b></b>
html | <p>one<sup>1</sup> two</p> | <p>ONE<sup>1</sup> TWO</p>
html | <svg><text>one</text></svg>two | <svg><text>one</text></svg>TWO
html | <p>one <kbd>Ctrl</kbd> two</p> | <p>ONE <kbd>Ctrl</kbd> TWO</p>
html | {n, plural, one {# file} other {# files}} | {n, plural, one {# file} other {# files}}
html | <B>one</b> two | <B>ONE</b> TWO
html | <p>one <b><i><u>two</u></i></b> three</p> | <p>ONE <b><i><u>TWO</u></i></b> THREE</p>
html | <p>one<b> two </b>three</p> | <p>ONE <b>TWO</b> THREE</p>
html | <p>one <b>two</b>three</p> | <p><b>ONE TWOTHREE</b></p>
html | <b>one</b><i>two</i> | <b>ONE</b><i>TWO</i>
html | <p>one-<b>two</b> three</p> | <p><b>ONE-TWO THREE</b></p>
html | <img src="a.png" alt="one"><p>two</p> | <img src="a.png" alt="ONE"><p>TWO</p>
html | <button aria-label="one two">three</button> | <button aria-label="ONE TWO">THREE</button>
html | <p>one <var>x</var> two</p> | <p>ONE <var>x</var> TWO</p>
html | <p>one <samp>a b</samp>, two</p> | <p>ONE <samp>a b</samp>, TWO</p>
html | <math><mi>x</mi></math> one | <math><mi>x</mi></math> ONE
html | <textarea>one</textarea> two | <textarea>one</textarea> TWO
html | <p>one <object data="x">two</object> three</p> | <p>ONE <object data="x">two</object> THREE</p>
html | <blockquote>one<br/>two</blockquote> | <blockquote>ONE<br/>TWO</blockquote>
html | <p>one<br /><br />two</p> | <p>ONE<br /><br />TWO</p>
html | <p>one &lt;b&gt; two</p> | <p>ONE &lt;B&gt; TWO</p>
html | <p>one &#1; two</p> | <p>ONE TWO</p>
html | <p>one &unknown; two</p> | <p>ONE &amp;UNKNOWN; TWO</p>
html | <p>100&#37; one</p> | <p>100&#37; ONE</p>
html | <p>one ${total} two</p> | <p>ONE ${total} TWO</p>
html | <p>one %1$s two %2$s</p> | <p>ONE %1$s TWO %2$s</p>
html | <p>one %% two</p> | <p>ONE %% TWO</p>
html | <p>one @{user} two</p> | <p>ONE @{user} TWO</p>
html | <p>{a}{b} one</p> | <p>{a}{b} ONE</p>
html | <p>one <a href="{url}">two</a></p> | <p>ONE <a href="{url}">TWO</a></p>
html | <p>One <b>two. Three</b> four.</p> | <p>ONE <b>TWO. THREE</b> FOUR.</p>
html | <p><a href="x">One</a>. <a href="y">Two</a>.</p> | <p><a href="x">ONE</a>. <a href="y">TWO</a>.</p>
html | one<p>two</p>three | ONE<p>TWO</p>THREE
html | <p>one <b>two | <p>ONE <b>TWO
html | </b>one | </b>ONE
html | <p>one < two > three</p> | <p>ONE &lt; TWO &gt; THREE</p>
html | <!--[if IE]>one<![endif]-->two | <!--[if IE]>one<![endif]-->TWO
html | <![CDATA[one]]>two | <![CDATA[one]]>TWO
html | <![CD>one <![1]>two <!-- | <![CD>ONE <![1]>TWO <!--
html | <p>www.a.de one</p> | <p>www.a.de ONE</p>
html | <p>A&amp;B Co. one</p> | <p>A&amp;B CO. ONE</p>
html | <p>one</p><!-- two <b>three</b> four | <p>ONE</p><!-- two <b>three</b> four
html | one <a href='x.html>two</a> <b>three</b> | ONE <a href='x.html>two</a> <b>three</b>
html | one & two <b | ONE &amp; TWO <b
html | <div translate="no">one <p translate="yes">two <b>three</b></p> four</div>five | <div translate="no">one <p translate="yes">TWO <b>THREE</b></p> four</div>FIVE
html | one <span translate="no">two <b translate="yes">three</b> four</span> five | ONE <span translate="no">two <b translate="yes">THREE</b> four</span> FIVE
html | <code translate="yes">one two</code> three | <code translate="yes">ONE TWO</code> THREE
html | <p class="notranslate" translate="yes">one</p> | <p class="notranslate" translate="yes">ONE</p>
html | <script translate="yes">one</script>two | <script translate="yes">one</script>TWO
html | <a translate="no"><div>one</div></a> two | <a translate="no"><div>one</div></a> TWO
html | <code>one <p>two</p> | <code>one <p>TWO</p>
html | <b><code>one</b> two</code> | <b><code>one</b> TWO</code>
html | <ul><li translate="no">one</ul><p>two</p> | <ul><li translate="no">one</ul><p>TWO</p>
html | one <%= "<b>" %> two | ONE <%= "<b>" %> TWO
html | <% if x > 1 %>one<% else %>two<% end %> | <% if x > 1 %>ONE<% else %>TWO<% end %>
html | <?php if ($a > 1): ?><p>one</p><?php endif ?> | <?php if ($a > 1): ?><p>ONE</p><?php endif ?>
html | one <?= $x ?> two | ONE <?= $x ?> TWO
html | one {% if a < b %} two {% endif %} {{ a<b }} | ONE {% if a < b %} TWO {% endif %} {{ a<b }}
html | one {{{x}}} two | ONE {{{x}}} TWO
html | one %{y} two | ONE %{y} TWO
html | <p>&nbsp;one&nbsp; &mdash; two&nbsp;</p> | <p>&nbsp;ONE&nbsp; &mdash; TWO&nbsp;</p>
html | <p><i>one</i> <b>two&nbsp;</b></p> | <p><i>ONE</i> <b>TWO</b>&nbsp;</p>
html | <p>“one” &ldquo;two”</p> | <p>“ONE” “TWO”</p>
html | <img alt="one&nbsp;two &quot;three&quot;"> | <img alt="ONE&nbsp;TWO &quot;THREE&quot;">
html | <img alt="&nbsp; one&nbsp;"> | <img alt="&nbsp; ONE&nbsp;">
html | <p>&emsp;one&nbsp;&emsp;</p> | <p>&emsp;ONE&nbsp;&emsp;</p>
html | <p>x&nbsp;R&amp;D&nbsp;y one</p> | <p>X&nbsp;R&amp;D&nbsp;Y ONE</p>
html | <p>one <0>two</0> <1/>three &lt;2&gt;four&lt;/2&gt;</p> | <p>ONE <0>TWO</0> <1/>THREE &lt;2&gt;FOUR&lt;/2&gt;</p>
html | <p>One. <!-- x --> Two.</p> | <p>ONE. <!-- x --> TWO.</p>
html | <p>{{#if a}}one{{else}}two{{/if}} {{^b}}three{{/b}}</p> | <p>{{#if a}}ONE{{else}}TWO{{/if}} {{^b}}THREE{{/b}}</p>
html | <p>[% IF x > 1 %]one[% END %] two [% x %] three</p> | <p>[% IF x > 1 %]ONE[% END %] TWO [% x %] THREE</p>
markdown | +++⏎t = "one"⏎+++⏎two | +++⏎t = "one"⏎+++⏎TWO
markdown | > [!NOTE]⏎> one⏎> two | > [!NOTE]⏎> ONE TWO
markdown | > [!NOTE]⏎>⏎> one | > [!NOTE]⏎>⏎> ONE
markdown | one US$5 or 6$ two | ONE US$5 OR 6$ TWO
html | <p>one 5 %Sale %percent</p> | <p>ONE 5 %SALE %PERCENT</p>
markdown | one $a_b + c_d$ two $5 three $6 | ONE $a_b + c_d$ TWO $5 THREE $6
markdown | $$⏎\frac{a_1}{b_1}⏎$$⏎⏎one $$x * y$$. | $$⏎\frac{a_1}{b_1}⏎$$⏎⏎ONE $$x * y$$.
markdown | one ${name}-${name} two | ONE ${name}-${name} TWO
markdown | one <0>two</0> <1/>three | ONE <0>TWO</0> <1/>THREE
markdown | one <img src="x" class="notranslate"> two | ONE <img src="x" class="notranslate"> TWO
markdown | # one # | # ONE #
markdown | > one⏎> two | > ONE TWO
markdown | ![one](a.png) two | ![one](a.png) TWO
markdown | ```⏎one⏎``` | ```⏎one⏎```
markdown |     one | ​    one
markdown | one  ⏎two | ONE  ⏎TWO
markdown | <http://a.b> one | <http://a.b> ONE
markdown | one \* two | ONE \* TWO
markdown | a | b⏎--|--⏎one | **two** | A | B⏎--|--⏎ONE | **TWO**
markdown | ---⏎t: one⏎---⏎two | ---⏎t: one⏎---⏎TWO
markdown | one⏎===⏎⏎two | ONE⏎===⏎⏎TWO
markdown | ~~one~~ two | ~~ONE~~ TWO
markdown | ***one** two* | ***ONE** TWO*
markdown | - one⏎  - two⏎⏎    three | - ONE⏎  - TWO⏎⏎    THREE
markdown | one snake_case two | ONE SNAKE\_CASE TWO
markdown | --- | ---
markdown | + one `x` | + ONE `x`
markdown | 1) one⏎2) two | 1) ONE⏎2) TWO
markdown | - [ ] one⏎- [x] two | - [ ] ONE⏎- [x] TWO
markdown | __one__ _two_ | __ONE__ _TWO_
markdown | [one](<a b> 'c') two | [ONE](<a b> 'c') TWO
markdown | [one][] two⏎⏎[one]: x | [ONE][one] TWO⏎⏎[one]: x
markdown | [one] two⏎⏎[one]: x | [ONE][one] TWO⏎⏎[one]: x
markdown | [![one](a.png)](b) two | [![one](a.png)](b) TWO
markdown | one\⏎two | ONE\⏎TWO
markdown | one<br>two | ONE<br>TWO
markdown | `` a`b `` one | `` a`b `` ONE
markdown | one⏎--- | ONE⏎---
markdown | 1\. one | 1\. ONE
markdown | \# one | \# ONE
markdown | one https://a.b/c_d two | ONE https://a.b/c_d TWO
markdown | one*two*three | *ONETWOTHREE*
markdown | **one***two* | **ONE***TWO*
markdown | a * b one | A \* B ONE
markdown | - one⏎⏎  ```⏎  x⏎  ```⏎- two | - ONE⏎⏎  ```⏎  x⏎  ```⏎- TWO
markdown | One. **Two.** Three. | ONE. **TWO.** THREE.
markdown | see [one] and [two three][r].⏎⏎[one]: x "one"⏎[r]: y | SEE [ONE][one] AND [TWO THREE][r].⏎⏎[one]: x "one"⏎[r]: y
markdown | [one⏎two] three⏎⏎[one two]: x | [ONE TWO][one two] THREE⏎⏎[one two]: x
markdown | [1] 2⏎⏎[1]: x | [1] 2⏎⏎[1]: x
markdown | ![one] ![two][] three⏎⏎[one]: x⏎[two]: y | ![one] ![two][] THREE⏎⏎[one]: x⏎[two]: y
markdown | one.[^1] two[^a]⏎⏎[^1]: three⏎    four⏎⏎    five⏎[^a]: six | ONE.[^1] TWO[^a]⏎⏎[^1]: THREE FOUR⏎⏎    FIVE⏎[^a]: SIX
markdown | one[^1]⏎⏎[^1]: http://x | ONE[^1]⏎⏎[^1]: http://x
markdown | one⏎[^1]: two⏎⏎> [^2]: three⏎> [^3]: four | ONE⏎[^1]: TWO⏎⏎> [^2]: THREE⏎> [^3]: FOUR
markdown | [^note]: note⏎⏎> - [^a]: a⏎⏎one[^a] | [^note]: NOTE⏎⏎> - [^a]: A⏎⏎ONE[^a]
markdown | [^one](x) two | [^ONE](x) TWO
markdown | one <kbd>Ctrl</kbd> two <code>three *four*</code> | ONE <kbd>Ctrl</kbd> TWO <code>three *four*</code>
markdown | one <span translate="no">two <span>three</span> four</span> five | ONE <span translate="no">two <span>three</span> four</span> FIVE
markdown | <div translate="no">⏎⏎one *two*⏎⏎<p>three</p>⏎⏎</div>⏎⏎four | <div translate="no">⏎⏎one *two*⏎⏎<p>three</p>⏎⏎</div>⏎⏎FOUR
markdown | <div translate="no">one⏎⏎two</div>⏎⏎three | <div translate="no">one⏎⏎two</div>⏎⏎THREE
markdown | - <div translate="no">⏎⏎  one⏎⏎two | - <div translate="no">⏎⏎  one⏎⏎TWO
markdown | <div translate="no">⏎⏎one⏎⏎ <p translate="yes">two⏎⏎three⏎⏎</p>⏎⏎</div>four⏎⏎five | <div translate="no">⏎⏎one⏎⏎ <p translate="yes">TWO⏎⏎THREE⏎⏎</p>⏎⏎</div>FOUR⏎⏎FIVE
markdown | one <span translate="no">two⏎⏎three</span> four | ONE <span translate="no">two⏎⏎THREE</span> FOUR
markdown | one <kbd>two three | ONE <kbd>two three
markdown | one&nbsp;two &hellip; three | ONE&nbsp;TWO &hellip; THREE
markdown | &emsp;*one*&nbsp;&nbsp; | &emsp;*ONE*&nbsp;&nbsp;
markdown | - [ ] &nbsp;&nbsp;one&nbsp; | - [ ] &nbsp;&nbsp;ONE&nbsp;
markdown | > &nbsp;⏎> one⏎>   two&#160; | > &nbsp;⏎> ONE TWO&#160;
markdown | {% if a_b %}one{% endif %} <?php x ?> two | {% if a_b %}ONE{% endif %} <?php x ?> TWO
markdown | ---⏎⏎[one] two⏎⏎---⏎⏎[one]: x | ---⏎⏎[ONE][one] TWO⏎⏎---⏎⏎[one]: x
markdown | > <div>⏎> one⏎> </div>⏎> two⏎⏎- - <p>three | > <div>⏎> ONE⏎> </div>⏎> TWO⏎⏎- - <p>THREE
markdown | - <!-- one --> <br> two⏎⏎  three | - <!-- one --> <br> TWO⏎⏎  THREE
markdown | one R&amp;D &hellip; ![two] [three]⏎⏎[two]: x | ONE R&amp;D &hellip; ![two] \[THREE\]⏎⏎[two]: x
markdown | <pre>⏎one⏎⏎two</pre> <b>three</b>⏎⏎four | <pre>⏎one⏎⏎two</pre> <b>THREE</b>⏎⏎FOUR
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one\Ntwo⏎three⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE\NTWO⏎THREE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one two⏎three⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE TWO⏎THREE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one < <i>two</i>, three <3⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE < <i>TWO</i>, THREE <3⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎{\an8}one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎{\an8}ONE⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎<font color="#fff">one</font>⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎<font color="#fff">ONE</font>⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎&amp; one⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎&amp; ONE⏎⏎
srt | 0001⏎0:0:9,0 --> 0:0:10.5⏎one⏎⏎⏎⏎00:00:11.000 --> 00:00:12,000 X1:3⏎two | 0001⏎0:0:9,0 --> 0:0:10.5⏎ONE⏎⏎⏎⏎00:00:11.000 --> 00:00:12,000 X1:3⏎TWO
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one.⏎⏎two three⏎⏎2⏎00:00:03,000 --> 00:00:04,000⏎⏎⏎3⏎00:00:05,000 --> 00:00:06,000⏎2⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE.⏎⏎TWO THREE⏎⏎2⏎00:00:03,000 --> 00:00:04,000⏎⏎⏎3⏎00:00:05,000 --> 00:00:06,000⏎2⏎⏎
srt | 1⏎00:00:01, --> 00:00:02,⏎one⏎⏎2⏎00:00:03,--> 00:00:04,⏎two⏎ | 1⏎00:00:01, --> 00:00:02,⏎ONE⏎⏎2⏎00:00:03,--> 00:00:04,⏎TWO⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎one⏎{{ x }}⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎ONE⏎{{ x }}⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎♪ one ♪⏎two⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎♪ ONE ♪⏎TWO⏎⏎
srt | 1⏎00:00:01,000 --> 00:00:02,000⏎[one]⏎- a⏎two⏎⏎ | 1⏎00:00:01,000 --> 00:00:02,000⏎[ONE]⏎- A⏎TWO⏎⏎
po | msgid "one\ntwo"⏎msgstr ""⏎ | msgid "one\ntwo"⏎msgstr ""⏎"ONE\n"⏎"TWO"⏎
po | msgid "one\ttwo\t\tthree"⏎msgstr ""⏎ | msgid "one\ttwo\t\tthree"⏎msgstr "ONE\tTWO\t\tTHREE"⏎
po | msgid "\tone: "⏎msgstr ""⏎ | msgid "\tone: "⏎msgstr "\tONE: "⏎
po | msgid "<b>one</b><i>two</i>"⏎msgstr ""⏎ | msgid "<b>one</b><i>two</i>"⏎msgstr "<b>ONE</b><i>TWO</i>"⏎
po | #. note⏎msgid "one"⏎msgstr "eins"⏎ | #. note⏎msgid "one"⏎msgstr "eins"⏎
po | #~ msgid "one"⏎#~ msgstr ""⏎ | #~ msgid "one"⏎#~ msgstr ""⏎
po | msgctxt "c"⏎msgid "one"⏎msgstr ""⏎ | msgctxt "c"⏎msgid "one"⏎msgstr "ONE"⏎
po | msgid "one"⏎msgid_plural "ones"⏎msgstr[0] "eins"⏎msgstr[1] ""⏎ | msgid "one"⏎msgid_plural "ones"⏎msgstr[0] "eins"⏎msgstr[1] "ONES"⏎
po | msgid ""⏎msgstr "Plural-Forms: nplurals=0; plural=0;\n"⏎⏎msgid "one"⏎msgid_plural "ones"⏎msgstr[0] ""⏎ | msgid ""⏎msgstr "Plural-Forms: nplurals=0; plural=0;\n"⏎⏎msgid "one"⏎msgid_plural "ones"⏎msgstr[0] "ONES"⏎
po | msgid ""⏎msgstr "Plural-Forms: nplurals=3; plural=n;\n"⏎⏎msgid "one"⏎msgid_plural "ones"⏎msgstr[0] ""⏎msgstr[1] ""⏎ | msgid ""⏎msgstr "Plural-Forms: nplurals=3; plural=n;\n"⏎⏎msgid "one"⏎msgid_plural "ones"⏎msgstr[0] "ONE"⏎msgstr[1] "ONES"⏎msgstr[2] "ONES"⏎
po | msgid "{% if a %} one {% endif %} two  three"⏎msgstr ""⏎ | msgid "{% if a %} one {% endif %} two  three"⏎msgstr "{% if a %} ONE {% endif %} TWO  THREE"⏎
po | msgid "one <0>two</0> <1/>three <3 five"⏎msgstr ""⏎ | msgid "one <0>two</0> <1/>three <3 five"⏎msgstr "ONE <0>TWO</0> <1/>THREE <3 FIVE"⏎
po | msgid "<1><0>one</0> two</1>."⏎msgstr ""⏎ | msgid "<1><0>one</0> two</1>."⏎msgstr "<1><0>ONE</0> TWO</1>."⏎
po | msgid "<x> one <y> two <z>"⏎msgstr ""⏎ | msgid "<x> one <y> two <z>"⏎msgstr "<x> ONE <y> TWO <z>"⏎
po | msgid "one\v \a\x41\101 \q"⏎"two\r\n"⏎msgstr ""⏎ | msgid "one\v \a\x41\101 \q"⏎"two\r\n"⏎msgstr "ONE\v \aAA \\QTWO\r\n"⏎
po | # a⏎⏎msgid "one"⏎msgstr ""⏎⏎#~| msgid "x"⏎#~ msgid "two"⏎#~ msgstr ""⏎ | # a⏎⏎msgid "one"⏎msgstr "ONE"⏎⏎#~| msgid "x"⏎#~ msgid "two"⏎#~ msgstr ""⏎
template | one {name}, <b>two</b> %d.⏎⏎  three ${x} <y>⏎ | ONE {name}, <b>TWO</b> %d.⏎⏎  THREE ${x} <y>⏎
template | https://a.b/{{ x.y }}/${ z }/[% path %]/end. one | https://a.b/{{ x.y }}/${ z }/[% path %]/end. ONE
template | one www.a.b/{{slug}}{% if x %} two {% endif %} | ONE www.a.b/{{slug}}{% if x %} TWO {% endif %}
template | one https://a.b/{x {y. two | ONE https://a.b/{x {Y. TWO
template | one & two < {% x %} &lt; | ONE & TWO < {% x %} &lt;
po | msgid "(one){{ y }}\"two\" three"⏎msgstr ""⏎ | msgid "(one){{ y }}\"two\" three"⏎msgstr "(ONE){{ y }}\"TWO\" THREE"⏎
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
