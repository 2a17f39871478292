// Vercel's AI SDK in a tool loop with a server, as its documentation shows: `node loop.mjs < job.json`.
// job: see testing/prr_testing/clients.py.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { readFileSync } from "node:fs";

const job = JSON.parse(readFileSync(0, "utf8"));
const provider = createOpenAICompatible({ name: "server", baseURL: `${job.base_url}/v1` });
const tools = Object.fromEntries(
  job.tools.map(({ function: f }) => [
    f.name,
    tool({ description: f.description, inputSchema: jsonSchema(f.parameters) }),
  ]),
);
const messages = [{ role: "user", content: job.question }];
for (let turn = 0; turn < job.turns; turn++) {
  const request = { model: provider(job.model), messages, tools, maxRetries: 0 };
  const answer = job.stream ? streamText(request) : await generateText(request);
  if (job.stream) await answer.consumeStream();
  messages.push(...(await answer.response).messages);
  const calls = await answer.toolCalls;
  const output = { type: "text", value: "done" };
  const content = calls.map(({ toolCallId, toolName }) => ({ type: "tool-result", toolCallId, toolName, output }));
  messages.push(calls.length ? { role: "tool", content } : { role: "user", content: job.follow_up });
}
