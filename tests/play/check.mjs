// check.mjs SITE < request.json > answers.json
import fs from "node:fs";
import { pathToFileURL } from "node:url";
import { check } from "./check.js";

const site = process.argv[2];
const read = async (name) => {
  const bytes = fs.readFileSync(`${site}/${name}`);
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
};
const request = JSON.parse(fs.readFileSync(0, "utf8"));
const answers = await check(request, `${pathToFileURL(site)}/`, read);
fs.writeFileSync(1, JSON.stringify(answers));
