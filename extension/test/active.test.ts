import assert from 'node:assert/strict';
import test from 'node:test';

import { sourcesOf } from '../src/active';
import { SOURCE } from './messages';

const OTHER = { ...SOURCE, coordinator: 'c2', kernel: 'k2' };

test('a notebook has the coordinators of its kernel, not those of an earlier one', () => {
  assert.deepEqual(sourcesOf({ path: SOURCE.notebook, kernel: 'k2' }, [SOURCE, OTHER]), [OTHER]);
});

test('a notebook whose kernel is not known yet has those of its path', () => {
  assert.deepEqual(sourcesOf({ path: SOURCE.notebook, kernel: '' }, [SOURCE]), [SOURCE]);
});

test('what is gone does not count, nor does anything without a document', () => {
  assert.deepEqual(sourcesOf({ path: '', kernel: 'k1' }, [{ ...SOURCE, gone: 'died' }]), []);
  assert.deepEqual(sourcesOf(null, [SOURCE]), []);
});
