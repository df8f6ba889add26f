"""Uses word lists to find pairs of related words in a sentence. The related words are a verb and its
complement, or a pronoun and its antecedent.

The functions of this file do not parse the sentence. Therefore the functions can find a verb and a
complement, or a pronoun and an antecedent, that are not related in the sentence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.errors_vaswani import InvalidValueError

# The default word lists of each language. `_VERBS` maps the forms of each verb to the possible complements of
# the verb. `_PRONOUNS` maps the forms of each pronoun to the possible antecedents of the pronoun. The lists
# contain frequent words of image captions (as in Multi30k) and of everyday sentences (as in Tatoeba). The
# complement of a verb can be a particle or a preposition, such as "off" in "take your hands off".
# `_VERBS` also contains the verb of Figure 3 of the paper.
_VERBS = {
    "en": {
        "wear wears wearing": (
            "shirt shirts t-shirt t-shirts jacket jackets coat coats hat hats cap caps helmet helmets dress "
            "dresses pants jeans shorts suit suits sweater glasses sunglasses uniform uniforms costume "
            "costumes clothing clothes outfit outfits vest vests gloves shoes skirt top tops"
        ),
        "hold holds holding": (
            "ball camera baby sign signs cup flag flags child stick bag dog umbrella bat racket rope toy"
        ),
        "play plays playing": (
            "guitar guitars soccer football basketball baseball volleyball tennis piano drums violin "
            "instrument instruments music game games cards ball accordion"
        ),
        "ride rides riding": (
            "bike bikes bicycle bicycles horse horses motorcycle motorcycles skateboard scooter bull wave"
        ),
        "take takes taking took": "picture pictures photo photos photograph photographs nap break off away back home",
        "make makes making made": "difficult easy hard possible happy sad angry sure",
        "have has had having": (
            "book books money car house dog friend friends letter question questions problem problems homework "
            "idea job work"
        ),
        "want wants wanted need needs needed": (
            "book books money car house room doctor job help tea coffee wine beer water music movie movies cake"
        ),
        "ask asks asked asking": "question questions money help advice name favor for about",
        "buy buys bought buying": "book books car house dress ticket tickets bread milk flowers",
        "read reads reading write writes wrote writing": "book books letter letters newspaper newspapers",
        "eat eats ate eating": "bread cake meat fish fruit apple apples rice lunch breakfast dinner",
        "drink drinks drank drinking": "tea coffee wine beer water milk juice",
        "speak speaks spoke speaking": "english french german spanish language languages",
        "go goes went going": "school bed church hospital station beach",
        "live lives lived living": "house apartment city town village country",
        "wait waits waited waiting": "bus train minutes hour hours",
        "put puts putting": "on in away back",
        "turn turns turned turning": "on off up down",
        "pick picks picked picking": "up",
        "tell tells told telling talk talks talked talking": "about",
        "give gives gave giving bring brings brought bringing": "to back",
        "look looks looked looking": "at for like",
        "help helps helped helping": "with",
        "spend spends spent spending": "on",
        "keep keeps kept keeping": "from secret",
    },
    "de": {
        "trage trägt tragen": (
            "hemd hemden t-shirt jacke jacken mantel hut hüte mütze helm helme kleid kleider hose hosen "
            "jeans anzug pullover brille sonnenbrille uniform uniformen kostüm kleidung weste handschuhe "
            "rock oberteil"
        ),
        "halte hält halten": "ball kamera baby schild tasse flagge kind stock tasche hund schläger seil hoch",
        "spiele spielt spielen": (
            "gitarre fußball football basketball baseball volleyball tennis klavier schlagzeug geige "
            "instrument instrumente musik spiel karten ball akkordeon"
        ),
        "fährt fahren": "fahrrad fahrräder motorrad motorräder skateboard roller ski",
        "mache macht machen machte": "foto fotos bild bilder pause schwierig möglich glücklich traurig auf aus zu",
        "schaut schauen sieht sehen": "zu an",
        "habe hast hat haben hatte hatten": (
            "buch bücher geld auto haus hund freund freunde brief frage fragen problem probleme hausaufgaben "
            "idee arbeit zeit glück recht lust angst"
        ),
        "gehe gehst geht gehen ging": "schule hause bett kirche krankenhaus kino bahnhof strand weg zurück aus",
        "wohne wohnst wohnt wohnen wohnte lebe lebt leben": "haus wohnung stadt dorf land",
        "gib gibt geben gab": "buch geld hand antwort rat zurück auf",
        "will willst wollen wollte möchte möchtest möchten brauche brauchst braucht brauchen": (
            "buch bücher geld auto haus zimmer arzt arbeit hilfe tee kaffee wein bier wasser musik film kuchen"
        ),
        "kaufe kauft kaufen kaufte": "buch bücher auto haus kleid brot milch blumen",
        "lese liest lesen las schreibe schreibt schreiben schrieb": "buch bücher brief briefe zeitung",
        "esse isst essen aß": "brot kuchen fleisch fisch obst apfel äpfel reis",
        "trinke trinkt trinken trank": "tee kaffee wein bier wasser milch saft",
        "spreche spricht sprechen sprach": "englisch französisch deutsch spanisch sprache sprachen",
        "warte wartet warten wartete": "bus zug minuten stunde stunden",
        "nimm nehme nimmt nehmen nahm bring bringe bringt brachte": "mit weg ab zurück",
        "komm komme kommst kommt kommen kam": "an mit zurück vorbei",
        "ruf rufe rufst ruft rief fange fängt fing": "an",
        "steh stehe steht stand höre hört hörte": "auf",
        "siehst sah sahst": "aus",
    },
}
_PRONOUNS = {
    "en": {
        "he him his himself": (
            "man boy guy gentleman father son player male baby child person brother uncle grandfather husband king "
            "doctor teacher tom john"
        ),
        "she her hers herself": (
            "woman girl lady mother daughter player female baby child person sister aunt grandmother wife queen "
            "doctor teacher mary"
        ),
        "it its itself": "dog cat animal horse bird puppy law car boat book house train",
        "they them their themselves": (
            "men women people children boys girls kids players dogs couple group guys ladies friends parents students"
        ),
    },
    "de": {
        "er ihm ihn sein seine seinem seinen seiner": (
            "mann junge herr vater sohn spieler hund bruder onkel großvater könig arzt lehrer tom john"
        ),
        "sie ihr ihre ihrem ihren ihrer": (
            "frau dame mutter tochter spielerin frauen männer leute kinder jungen mädchen personen menschen schwester "
            "tante großmutter königin eltern freunde maria mary"
        ),
    },
}


@dataclass(frozen=True)
class Relation:
    """A rule that finds pairs of related words, and the properties of the picture of these pairs.

    `partners` maps each word, such as a verb, to its possible partners, such as complements, in lower case.
    Each word is paired with the nearest word from `partners[word]` that is at least `least_distance` words
    away. If `is_earlier` is True, the partner comes before the word in the sentence, otherwise after the
    word.

    `name` and `caption` are the name of the picture and the beginning of its caption. `num_heads` is the
    number of heads in the picture. `option` is the command-line option that changes `partners`.
    """

    name: str
    caption: str
    option: str
    num_heads: int
    partners: Mapping[str, frozenset[str]]
    is_earlier: bool
    least_distance: int

    def pairs(self, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield the index of the verb or pronoun, and the index of its complement or antecedent."""
        lower = [word.casefold() for word in words]
        for index, word in enumerate(lower):
            if self.is_earlier:
                places: Iterable[int] = range(index - self.least_distance, -1, -1)
            else:
                places = range(index + self.least_distance, len(words))
            of_word = self.partners.get(word, frozenset())
            partner = next((place for place in places if lower[place] in of_word), None)
            if partner is not None:
                yield index, partner


def verb_relation(verbs: Mapping[str, frozenset[str]], least_distance: int) -> Relation:
    """Return the relation between verbs and complements. `verbs` maps each verb to its complements."""
    return Relation(
        name="verb_to_complement",
        caption=(
            "Encoder self-attention from a verb to its complement (from the words below to the words above), "
            "as in Figure 3 of the paper. The rule: the complement is a word from the word list of the verb, the first that "
            f"follows the verb at a distance of at least {least_distance} words; the rule does not check the "
            "grammar."
        ),
        option="--verbs",
        num_heads=1,
        partners=verbs,
        is_earlier=False,
        least_distance=least_distance,
    )


def pronoun_relation(pronouns: Mapping[str, frozenset[str]], least_distance: int) -> Relation:
    """Return the relation between pronouns and antecedents. `pronouns` maps each pronoun to its
    antecedents.
    """
    return Relation(
        name="pronoun_to_antecedent",
        caption=(
            "Encoder self-attention from a pronoun to its antecedent (from the words below to the words "
            "above), as in Figure 4 of the paper. The rule: the antecedent is a word from the word list of the pronoun, the last "
            f"that precedes the pronoun at a distance of at least {least_distance} words; the rule does not "
            "check to whom the pronoun refers."
        ),
        option="--pronouns",
        # Figure 4 of the paper also shows two heads.
        num_heads=2,
        partners=pronouns,
        is_earlier=True,
        least_distance=least_distance,
    )


def default_verbs(language: str) -> dict[str, frozenset[str]] | None:
    """Return the words that each verb of a language can have as a complement, such as "shirt" for "wears".
    Return None if the language has no word list.
    """
    return _by_word(_VERBS[language]) if language in _VERBS else None


def default_pronouns(language: str) -> dict[str, frozenset[str]] | None:
    """Return the possible antecedents of each pronoun of a language. Return None if the language has no word
    list.
    """
    return _by_word(_PRONOUNS[language]) if language in _PRONOUNS else None


def _by_word(lists: Mapping[str, str]) -> dict[str, frozenset[str]]:
    partners = {}
    for words, of_words in lists.items():
        for word in words.split():
            partners[word] = frozenset(of_words.split())
    return partners


def read_partners(entries: Iterable[str], option: str) -> dict[str, frozenset[str]]:
    """Read entries such as "wears:shirt,hat" of the command-line option `option`, such as "--verbs"."""
    partners = {}
    for entry in entries:
        word, _, names = entry.partition(":")
        of_word = frozenset(name.strip().casefold() for name in names.split(",") if name.strip())
        if not word.strip() or not of_word:
            raise InvalidValueError(
                f"`{option}` must have entries such as wears:shirt,hat, but has {entry!r}."
            )
        partners[word.strip().casefold()] = of_word
    return partners
