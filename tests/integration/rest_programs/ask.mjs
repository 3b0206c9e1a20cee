// Sends requests with Node's fetch. Arguments: URL, and a file with a JSON list of [method, path, body or null].
// Prints a JSON list of [status, body].
import { readFileSync } from "node:fs";

const [url, file] = process.argv.slice(2);
const answers = [];
for (const [method, path, body] of JSON.parse(readFileSync(file, "utf-8"))) {
  const response = await fetch(url + path, { method, body });
  answers.push([response.status, await response.text()]);
}
console.log(JSON.stringify(answers));
