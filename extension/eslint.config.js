import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['build/', 'lib/', 'node_modules/', 'eslint.config.js'] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      'no-console': 'error',
    },
  },
  {
    // node:test's `test` returns a promise that nobody needs.
    files: ['test/**'],
    rules: { '@typescript-eslint/no-floating-promises': 'off' },
  },
);
