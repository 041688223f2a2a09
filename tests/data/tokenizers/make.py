"""Trains the small tokenizers that lie beside this file and writes what they make of hard texts.

    pip install tokenizers && python3 make.py

Each has the pre-tokenizer of a model family (see README.md) and a few hundred merges, so that the files stay small.
golden.json holds, for each tokenizer and for ../novelist, the token numbers of every text and the text that they decode
to. Running it again with tokenizers 0.23 changes nothing.
"""
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r'\p{N}{1,3}', r'\p{N}')

CORPUS = [
    "The queue hands out one tile after the other, and every worker takes the next one that it can get.",
    "It's what we'd expect: they're done when the counter says so, and you'll see that it doesn't wait.",
    "for (int i = 0; i < 1024; ++i) {\n    total += values[i] * weights[i];\n}\n\nreturn total / 1024.0;",
    "def step(state, token):\n\treturn state.advance(token)  # one position\n\n\nprint(step(None, 17))\n",
    "In 2026 there were 365 days, 8760 hours, 525600 minutes and 31536000 seconds.",
    "Der Fluß fließt über die Brücke, während die Vögel schön singen. Größe, Übung, Äpfel.",
    "Le garçon mangé déjà l'été dernier à côté de l'hôtel où naît la forêt.",
    "Москва и река; в лесу темно, а в поле светло. Где же дорога домой?",
    "机器学习需要大量的数据。今天天气很好，我们去公园散步吧。",
    "東京の空は青い。明日は雨が降るかもしれません。カタカナとひらがな。",
    "한국어 문장은 띄어쓰기를 합니다. 오늘은 날씨가 좋습니다.",
    "مرحبا بالعالم، كيف حالك اليوم؟ هذا نص قصير.",
    "यह एक छोटा वाक्य है। नमस्ते दुनिया।",
    "😀 smiles, 👩‍💻 writes, 🇩🇪 flags, ❤️ hearts and 🤷🏽‍♀️ shrugs.",
] * 3

TEXTS = [
    "", " ", "  ", "\n", "\t\t\n  \n", "a", " a", "a ", "   a   b   ", "x\n\n\ny", "x \n \n y", "a\r\nb\r\n\r\nc", "tab\tand\x0bvt\x0cff",
    "It was a dark and stormy night", "The queue hands out one tile after the other.", "Hello, world! How's it going? I'LL SEE, he'D said; they'RE.",
    "''s's 'S don'T we'Ve 'ſ 'ſt", "1 12 123 1234 12345 123456.789 0x1F ٣٤٥ Ⅷ ½ ²³ ๑๒ 一二三", "$100,000.00 (50%) #tag @you a_b-c/d\\e",
    "über Größe ÄÖÜß naïve café", "cafe\u0301 A\u030a n\u0303 \u1100\u1161\u11a8 \u212b \ufb01 \u1e9b\u0323", "a\u0327\u0301 a\u0301\u0327",
    "Москва река", "机器学习 数据。", "東京の空は青い", "한국어 문장", "مرحبا بالعالم؟", "नमस्ते दुनिया", "ไทย ภาษา",
    "😀👩‍💻🇩🇪❤️🤷🏽‍♀️ 👨‍👩‍👧‍👦!", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠜎𠜱", "a\u00a0b\u2003c\u3000d\u202fe\u2028f\u2029g\u0085h", "a\u180eb \u180e c", "a\u200bb\u200d\ufeffc",
    "a\x1cb\x1db\x1eb\x1f c", "\x00\x01\x7f", "zero\x00inside", "\ud7ff\ue000\ufffd\U0010ffff", "e" + "\u0301" * 20,
    "<|begin|>", "a<|end|>b", "<|begin|><|begin|> <|end|>", "<|begin|", "<<|end|>>", " <|tool|> ", "<|tool|>x<|tool|><|tool_call|>", "cafe\u0301<|tool|>e\u0301",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababababababababab", "-" * 70, " " * 50 + "x" + " " * 50, "\n" * 33, "=" * 16 + ">" * 16,
    "def step(state, token):\n\treturn state.advance(token)  # one position\n", "if(x){\n    y();\n\n    z();\n}\n",
    "thethethe the The THE tHe", "queuequeue workerworker", "e\u0301tude na\u0131ve \u0130stanbul \u01c5 \u02b0 \u0903 \u20dd",
]


def train(name, pre, *, normalizer=None, ignore_merges=False, bos=False, prefix=('<|begin|>', '<|end|>')):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(prefix), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    # One added token that is text, looked for after normalization, and a longer one that begins like it.
    tokenizer.add_tokens([AddedToken('<|tool|>', special=False, normalized=True), AddedToken('<|tool_call|>', special=False, normalized=False)])
    if bos:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single='<|begin|> $A', special_tokens=[('<|begin|>', tokenizer.token_to_id('<|begin|>'))])])
    tokenizer.save(str(HERE / f'{name}.json'), pretty=False)
    return tokenizer


def split(expression):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), behavior='isolated', invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])


def with_merges_as_strings(name):
    """Older files write a merge as one string."""
    path = HERE / f'{name}.json'
    document = json.loads(path.read_text(encoding='utf-8'))
    document['model']['merges'] = [' '.join(pair) for pair in document['model']['merges']]
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    return Tokenizer.from_file(str(path))


def main():
    train('gpt2', pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizers = {
        'novelist': Tokenizer.from_file(str(HERE / '../novelist/tokenizer.json')),
        'gpt2': with_merges_as_strings('gpt2'),
        'prefix_space': train('prefix_space', pre_tokenizers.ByteLevel(add_prefix_space=True)),
        'llama3': train('llama3', split(LLAMA3), ignore_merges=True, bos=True),
        'qwen2': train('qwen2', split(QWEN2), normalizer=normalizers.NFC()),
        'smollm': train('smollm', pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    }
    # The last token gives way to a word that no merge leads to: ignore_merges finds it, merging does not.
    path = HERE / 'llama3.json'
    document = json.loads(path.read_text(encoding='utf-8'))
    model = document['model']
    last = max(model['vocab'], key=model['vocab'].get)
    model['vocab']['Ġstormy'] = model['vocab'].pop(last)
    model['merges'] = [pair for pair in model['merges'] if ''.join(pair) != last]
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    tokenizers['llama3'] = Tokenizer.from_file(str(path))

    golden = {}
    for name, tokenizer in tokenizers.items():
        golden[name] = []
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            golden[name].append({'text': text, 'ids': ids, 'decoded': tokenizer.decode(ids)})
    (HERE / 'golden.json').write_text(json.dumps(golden, separators=(',', ':')) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
