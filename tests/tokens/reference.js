// The ids that a tokenizer.json gives to a JSON list of texts on stdin, and the texts that the ids give.
const fs = require("fs");
const { Tokenizer } = require("@anush008/tokenizers");

(async () => {
  const tokenizer = await Tokenizer.fromFile(process.argv[2]);
  const ids = [], decoded = [];
  for (const text of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const encoding = await tokenizer.encode(text, null, { addSpecialTokens: false });
    ids.push(Array.from(encoding.getIds()));
    decoded.push(await tokenizer.decode(encoding.getIds(), true));
  }
  console.log(JSON.stringify([ids, decoded]));
})();
